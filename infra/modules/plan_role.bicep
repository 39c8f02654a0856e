// The role that lets the app read and change a plan, and nothing else in the resource group.

param plan string

@description('Part of the name of the role, which must be unique in the tenant.')
param app string

param principalId string

// Rules may use the plan's own metrics, such as its CPU.
var monitoringReader = '43d0d8ad-25c7-4714-9337-8ba259a9fe05'

resource target 'Microsoft.Web/serverfarms@2025-03-01' existing = { name: plan }

resource role 'Microsoft.Authorization/roleDefinitions@2022-04-01' = {
  name: guid(resourceGroup().id, app, 'scale plans')
  properties: {
    roleName: 'App Service Plan capacity (${app}, ${uniqueString(resourceGroup().id)})'
    description: 'Reads and sets the capacity of App Service Plans.'
    type: 'CustomRole'
    // The app follows a change by reading the plan. Operations belong to the subscription, so a role
    // on the plan cannot read them.
    permissions: [
      {
        actions: [
          'Microsoft.Web/serverfarms/read'
          'Microsoft.Web/serverfarms/write'
        ]
        notActions: []
        dataActions: []
        notDataActions: []
      }
    ]
    assignableScopes: [resourceGroup().id]
  }
}

resource assignment 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(target.id, principalId, role.id)
  scope: target
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: role.id
  }
}

resource mayReadMetrics 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(target.id, principalId, monitoringReader)
  scope: target
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', monitoringReader)
  }
}
